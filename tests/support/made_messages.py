"""Sentences of the message family, filled in."""


def as_raised(member, sentence, dtypes=("float", "c10::Half", "c10::Half", "c10::Half")):
    """Fill a sentence's placeholders, with unlike dtypes."""
    for operand, dtype in zip(member.operands, dtypes, strict=False):
        sentence = sentence.replace(f"{{{operand.name}}}", dtype)
    return sentence.replace("{#}", "1").replace("{*}", "1x")
