"""A recorded reason in a line: every sentence of the message family survives, addresses do not."""

from made_messages import as_raised

from precision_eval.explain.messages import short_reason
from precision_eval.explain.mismatches import family


def test_any_sentence_of_the_family_survives_shortening():
    raised = (
        "TorchRuntimeError: Dynamo failed to run FX node with fake tensors: call_function <built-in method cat of type "
        "object at 0x7fa532ccea40>(*((FakeTensor(...),),), **{'dim': -1}): got RuntimeError('Unexpected floating "
        "ScalarType in at::autocast::prioritize')\n\nfrom user code:\n   File x"
    )
    assert short_reason(raised) == "Unexpected floating ScalarType in at::autocast::prioritize"
    for member in family():
        sentence = as_raised(member, member.sentences[0])
        assert short_reason(f"trace: RuntimeError: {'x' * 300} {sentence}\nmore") == sentence, member.id


def test_addresses_differ_between_runs_and_are_left_out():
    text = "TypeError: <built-in method cat of type object at {}> got a str\nmore"
    assert short_reason(text.format("0x7fa532ccea40")) == text.format("0x…").splitlines()[0]
    assert short_reason("ValueError: 5x0 and a0x1f stay") == "ValueError: 5x0 and a0x1f stay"


def test_an_unknown_message_keeps_its_first_line():
    assert short_reason("KeyError: 'a'\nmore") == "KeyError: 'a'"
    assert len(short_reason("x" * 900)) == 200
    assert short_reason(None) == short_reason(" \n") == "no reason recorded"
