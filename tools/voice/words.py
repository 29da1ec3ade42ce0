"""Content words of the three text worlds.

No word stands in two worlds, so no recogniser and no evaluation can profit from a word that the voice was trained on;
only function words and numbers are shared. Each world is a tuple of word classes; a verb is written ``base`` where its
past form is regular and ``base/past`` where it is not. Nouns form their plural regularly.
"""

# ruff: noqa: SIM905 - a thousand quoted words would hide the words

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WordClasses:
    """The content words of one world, by class."""

    nouns: tuple[str, ...]
    places: tuple[str, ...]
    people: tuple[str, ...]
    names: tuple[str, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]
    adverbs: tuple[str, ...]


_TRAIN = WordClasses(
    nouns=tuple(
        """apple arrow axe badge bag ball balloon banana band bank barrel basin basket bath battery beach bead
        beam bean bell belt bench bird biscuit blanket blossom board boat bone book boot bottle bowl box
        branch bread brick brush bucket buckle bulb bundle button cabbage cable cage cake camera canal
        candle canoe card carpet carrot cart castle catalogue ceiling chain chair chalk cheese chest chimney
        clock cloud coat coin collar comb copper cord corner cotton cradle crate crown cup cupboard curtain
        cushion dagger desk diamond dish door drawer dress drum egg engine envelope fan feather fence fern
        fiddle finger fire flag flame flute fork fossil fountain frame fruit gate gift glove goat gown grape
        guitar hammer handle hat hatch hinge hook horn horse jacket jar jewel jug kettle key kite ladder
        lamp lantern leather lemon lens letter lid log loom magnet map marble mask mast match medal melon
        mirror mitten moon motor mug nail napkin necklace needle nest net notebook oar onion orange organ
        oven paddle paint pan paper parcel path pear pearl pebble pen pencil pepper petal piano picture
        pillow pin pipe plank plate plough plum pocket pole pond potato pot powder pump puppet purse quilt
        rabbit radio raft rail rain razor ribbon ring rocket roof root rope rug saddle sail salt sandal
        saucer saw scarf seed shell ship shirt shovel silk silver sledge slipper soap sock spade spoon
        spring stair stamp star steam stone stool storm string sugar table tail tent thimble thread ticket
        tile tin torch towel toy train tray trumpet trunk tulip turnip umbrella vase veil violin wagon wall
        wallet watch wheel whistle window wire wool yarn zipper""".split()
    ),
    places=tuple(
        """bakery barn bay bridge cabin cave cellar chapel cliff cottage courtyard creek dairy desert dock farm
        forest garden harbour hill hotel inn island kitchen lake library lighthouse market meadow mill mine
        mountain museum office orchard palace park pasture pier quarry river school shed square stable
        station street temple theatre tower tunnel valley village wharf woodland workshop yard""".split()
    ),
    people=tuple(
        """actor aunt baker barber boy brother builder butcher captain carpenter clerk cook cousin dancer
        daughter doctor driver farmer father fisher friend gardener girl guard guest hunter judge king
        lawyer miner mother neighbour nurse painter pilot poet porter prince queen ranger sailor scholar
        sister soldier student tailor teacher uncle waiter weaver widow writer""".split()
    ),
    names=tuple(
        """Albert Alice Andrew Anna Arthur Beth Brian Carol Charles Clara Daniel David Edith Edward Ellen Emma
        Frank George Grace Hannah Harry Helen Henry Hugo Isabel Jack James Jane John Joseph Judith Kate
        Laura Lewis Lucy Margaret Martin Mary Michael Nora Oliver Paul Peter Rachel Robert Rose Ruth Sarah
        Simon Susan Thomas Victor Walter William""".split()
    ),
    adjectives=tuple(
        """amber ancient angry awkward bitter black blue blunt bold brave bright broad broken brown busy calm
        careful cheap clean clever cold common cool crooked cruel curious damp dark deep dirty dry dull
        dusty eager early empty faded faint fair famous fat fierce fine flat foolish fresh gentle golden
        grand gray great green grim handsome happy hard heavy hidden high hollow honest hot huge humble
        hungry icy jolly keen kind large late lazy light little lonely long loose loud lovely lucky merry
        mild narrow neat new noble odd old pale plain pleasant polished poor pretty proud purple quick quiet
        rare red rich rough round royal rusty sad shallow sharp shiny short shy silent simple slender slow
        small smooth soft sour steep stiff strange strong sturdy sweet swift tall tame tender thick thin
        tidy tight tiny tired ugly vast velvet warm weak wet white wide wild wise wooden yellow young""".split()
    ),
    verbs=tuple(
        """admire answer arrange ask bake balance bend/bent borrow break/broke bring/brought build/built burn
        bury buy/bought call carry catch/caught change chase choose/chose clean close collect colour copy
        count cover cross cut/cut deliver describe design discover dig/dug draw/drew drop/dropped enjoy
        examine explain fasten fetch fill find/found finish fix fold follow forget/forgot gather give/gave
        grab/grabbed greet guide help hide/hid hold/held inspect join keep/kept kick know/knew lead/led
        leave/left lend/lent lift like load lock lose/lost love make/made mark measure meet/met mend mention
        miss move name need notice offer open order pack paint pass pick place plan/planned plant point
        polish praise prepare press promise protect pull push raise reach read/read remember remove repair
        replace rescue return roll rub/rubbed save see/saw sell/sold send/sent share show/showed sketch
        steal/stole study support sweep/swept take/took teach/taught throw/threw tie/tied touch trade trust
        turn use visit want wash watch weigh wrap/wrapped""".split()
    ),
    adverbs=tuple(
        """again alone always badly boldly bravely calmly carefully cheerfully eagerly early easily finally
        gently gladly happily here kindly later loudly never often perhaps politely promptly proudly quickly
        quietly rarely sadly safely seldom silently slowly softly sometimes soon suddenly today together
        tomorrow usually warmly wisely yesterday""".split()
    ),
)

_HELDOUT = WordClasses(
    nouns=tuple(
        """acorn album anchor antler apron atlas bagpipe bamboo banjo barley beehive bicycle bonnet bracelet
        bubble bulldozer cactus calendar canvas caravan cello chessboard cider cinnamon coconut compass
        computer cork cracker crystal cymbal daisy dice dolphin doughnut dragon eagle elbow emerald eraser
        ferry flask freezer garlic ginger giraffe globe goggle goose gravel hamper harp helmet
        honeycomb igloo insect jigsaw juice kayak keyboard lettuce lilac lobster locket lotus magazine mango
        maple microphone monkey mosaic mushroom nutmeg oak ointment otter ox pamphlet parachute pavement
        peach pebbledash pigeon pizza plywood porridge propeller pudding pyjama quiver radish raisin rhubarb
        rucksack sausage scooter shampoo siphon skeleton sofa sparrow sponge staircase statue sundial syrup
        tangerine telescope thistle toaster tractor treasure turban turtle typewriter unicorn vinegar
        volcano walnut whale willow yacht yoghurt zebra""".split()
    ),
    places=tuple(
        """abbey airport arcade attic beachfront canteen casino cathedral clinic cloister convent factory fjord
        glacier greenhouse gymnasium hospital jungle laboratory lagoon monastery nursery observatory plaza
        prairie pub reservoir shipyard stadium suburb swamp vineyard zoo""".split()
    ),
    people=tuple(
        """acrobat architect astronaut banker chemist coach conductor detective diver editor engineer florist
        grandmother hermit janitor juggler librarian magician merchant nephew niece optician pianist plumber
        professor referee singer smuggler surgeon tourist umpire violinist wizard""".split()
    ),
    names=tuple(
        """Abigail Adrian Benjamin Bridget Cedric Chloe Desmond Dorothy Eugene Fiona Gregory Harriet Ian Imogen
        Jasper Joyce Kenneth Leonard Louise Marjorie Nigel Olivia Patrick Phoebe Quentin Rupert Sophie
        Stella Theodore Una Vincent Yvonne Zachary""".split()
    ),
    adjectives=tuple(
        """absurd aggressive amusing annoying austere beige bizarre blurred bouncy charming chilly clumsy
        complex cosy crimson crumbly delicious dizzy drowsy elegant enormous exotic fluffy fragile frozen
        furious fuzzy generous glossy gloomy graceful greedy grubby helpful indigo itchy jealous juicy loyal
        magenta massive modern mysterious nervous obvious opaque peculiar playful portable precious puzzled
        ragged savage scarlet scruffy serious sleepy slippery solid splendid speckled stubborn sunny thirsty
        thorough tropical turquoise unusual vague valuable vicious violet weary wobbly zealous""".split()
    ),
    verbs=tuple(
        """abandon accept adjust advertise announce appreciate assemble attach avoid baptise bless bother
        broadcast calculate capture challenge chew confuse convince crush damage decorate defend demand deny
        destroy display divide donate embrace encourage exchange explore film freeze/froze grill hire ignore
        imagine improve injure invent juggle knit/knitted launch magnify memorise observe obtain persuade
        photograph predict produce publish punish purchase question recognise recommend recycle refuse
        request reveal rewrite/rewrote ruin scrub/scrubbed search serve shake/shook shrink/shrank squeeze
        survey swallow swap/swapped translate unlock value vanish yank""".split()
    ),
    adverbs=tuple(
        """abruptly accidentally anxiously beautifully constantly daily deliberately elsewhere eventually
        everywhere exactly fortunately frequently hopefully immediately indoors lately meanwhile mostly
        nearby nervously nowadays occasionally outside overnight previously rapidly recently smoothly
        somehow tonight upstairs weekly""".split()
    ),
)

_RECOGNISER = WordClasses(
    nouns=tuple(
        """abacus accordion almond ankle antenna apricot aquarium artichoke avocado axle ballad barge barrow
        bathrobe beaker beard beaver beetle berry billboard binder blouse bolt bonfire boulder bouquet
        brooch broom bullet bun bus butterfly cabinet cannon cap cape cashew cauliflower ceramic chariot
        cherry chisel clarinet clay clover coal cocoa coffee coral couch cow crayon cricket crow cucumber
        diary dictionary dome donkey duck earring easel elephant elevator fabric faucet fig fireplace
        flannel fleece fox frog funnel garment gear geyser glass glue goblet gong grain grass griddle
        guidebook gutter hairbrush harness hawk hazelnut hedge herb hose hourglass ivory jam jeep jersey
        jigger joystick judo kennel knife knob label lace lark laundry leaf leash ledger lever lily lime
        linen lion lizard lute mail mattress menu metal milk mole mop moth mouse newspaper noodle nozzle
        oboe olive opal owl oyster package pancake panda pea peg penguin photo pigment pine poppy poster
        puzzle python quartz quill rake ravioli reel rice robe robin rock ruby ruler sand scale scissor
        screw seal shark sheet shelf shield shoe shutter sink skirt slate sleeve snail snow spear spider
        spinach squirrel steel stew stove strap straw suitcase swan sweater sword tape tea thorn thumb tiger
        toad tomato tooth truck tube tub vacuum van vest vine wax wheat wing wolf worm wrench""".split()
    ),
    places=tuple(
        """academy alley avenue basement bazaar border boulevard camp campus canyon capital city coast college
        continent corridor crossing dungeon embassy estate fortress foundry gallery garage grove gulf
        hallway highway hut kingdom lobby lounge marina marsh mosque oasis parlour peninsula playground
        plateau port ranch resort restaurant ridge seaside shop shore studio town tavern terrace university
        waterfall warehouse""".split()
    ),
    people=tuple(
        """accountant admiral ambassador apprentice archer artist athlete author bishop blacksmith bride
        champion child chief citizen colonel composer councillor crowd dentist duchess emperor father-in-law
        general giant governor grandfather hero historian inventor journalist knight landlord lady major
        manager mayor mechanic minister monk nun officer orphan owner parent passenger peasant pharmacist
        physician pirate policeman potter president priest princess pupil salesman scientist sculptor
        senator servant shepherd sheriff spy stranger thief traveller tutor twin vicar villager wife worker""".split()
    ),
    names=tuple(
        """Aaron Agnes Alan Amelia Barbara Barry Caroline Christopher Claire Colin Deborah Dennis Donald
        Elizabeth Eric Esther Florence Francis Gerald Gloria Howard Hilary Irene Jeremy Jonathan Joan Julia
        Keith Kevin Linda Malcolm Matthew Monica Nancy Neil Norman Pamela Philip Ralph Rebecca Richard
        Ronald Samuel Sheila Stephen Teresa Timothy Ursula Valerie Veronica Wendy""".split()
    ),
    adjectives=tuple(
        """able absent active actual afraid alive available average bare basic best blank blind brief brisk
        casual central certain cheeky chief civil classic coarse complete constant correct crisp current
        dangerous dead dear decent delicate dense different difficult direct distant double dreadful easy
        elastic electric essential even evil exact excellent expensive extra false familiar fancy fantastic
        favourite female final firm fit flexible fond foreign formal free frequent funny genuine
        giant glad good grateful guilty harsh healthy horrible ideal ill important innocent junior last
        least legal liquid live local low mad main male medical mental modest moist mutual nasty native
        natural nice normal numb official original outer patient perfect permanent plastic popular
        possible practical previous primary private proper public pure random raw ready real recent regular
        responsible rotten rude scared secret senior sensible separate severe similar single social special
        stale steady strict stupid subtle sudden super sure suspicious tasty terrible total tough tragic
        triangular true typical upper urgent useful usual vacant vivid wealthy weird whole wicked wonderful
        worthy wrong""".split()
    ),
    verbs=tuple(
        """accuse achieve adapt adopt affect alter amuse analyse approach approve arrest assist assume attack
        attend attract award ban/banned beat/beat begin/began believe bite/bit blame blow/blew boil bounce
        bump cancel/cancelled celebrate check cheer chop/chopped claim climb command compare complete
        conceal connect consider contain control/controlled correct create criticise deceive declare decline
        defeat delay deserve desire detect develop dislike divert drag/dragged drain dread drink/drank
        drive/drove dump earn eat/ate enter escape establish evaluate exclude expect expose express extend
        fail fear feed/fed feel/felt fight/fought force forgive/forgave fry/fried gain get/got grow/grew
        guess hate haul hear/heard heat hit/hit hug/hugged hunt hurry/hurried include inform insult
        introduce invite jail jump justify/justified kill kiss knock learn license list maintain manage
        marry/married melt mind mix multiply/multiplied neglect nominate obey object oppose organise own
        pause pay/paid peel permit/permitted phone pinch plead/pleaded pour practise prefer/preferred
        preserve prevent print process prove provide puncture record recover reduce refill reflect
        regret/regretted reject release rely rent repeat report reserve resist respect restore reward risk
        rob/robbed rule satisfy/satisfied scare scatter scratch seize shape shave shoot/shot shout shut/shut
        sign slice slide/slid smash smell sniff soak solve sort spell spend/spent spill split/split spoil
        spray stack stain start/started stop/stopped store stretch strike/struck strip/stripped suffer
        suggest supply/supplied surprise surround suspect switch tackle taste tease tell/told test thank
        threaten/threatened tickle tow trace track transport trap/trapped treat trick try/tried twist
        understand/understood undo/undid unite upset/upset wake/woke warn waste wave wear/wore welcome
        whip/whipped win/won wipe wish trace worry/worried wreck""".split()
    ),
    adverbs=tuple(
        """abroad afterwards almost already anyway apparently awfully barely basically briefly certainly
        clearly commonly completely correctly currently deeply directly downstairs entirely equally
        especially ever evidently extremely fairly firmly formerly forward frankly fully generally greatly
        hardly heavily highly honestly increasingly indeed initially instead largely mainly merely naturally
        nearly necessarily nicely normally obviously otherwise partly perfectly personally poorly possibly
        precisely presumably privately probably properly publicly purely readily really reasonably regularly
        relatively roughly seriously severely sharply shortly simply slightly specifically steadily strictly
        strongly surely surprisingly terribly thereby thoroughly thus tightly totally truly twice typically
        ultimately unfortunately vaguely widely""".split()
    ),
)

WORLD_WORDS: dict[str, WordClasses] = {"train": _TRAIN, "heldout": _HELDOUT, "recogniser": _RECOGNISER}
