"""Statements of buyers, sellers and carriers in the demo data, and their effect on the log-odds of abuse."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """A statement in several wordings, and what it adds to the log-odds of an abusive claim."""

    weight: float
    wordings: tuple[str, ...]


CLAIMS = (
    Statement(
        1.5,
        (
            "The box was empty when I opened it, there was no {item} inside.",
            "I received an empty package, the {item} is not in it.",
            "Opened the parcel and found nothing inside, no {item} at all!",
            "Only packing paper inside, the {item} is missing completely.",
        ),
    ),
    Statement(
        1.0,
        (
            "My {item} never arrived, I want my money back.",
            "I am still waiting for the {item}, it has never reached me, refund me now.",
            "The {item} did not come and I want all my money back today.",
            "Nothing was delivered here, so give me the money for the {item}.",
        ),
    ),
    Statement(
        0.4,
        (
            "This {item} looks fake to me, it is not the original brand.",
            "I think you sent a counterfeit {item}, the logo is wrong.",
            "The {item} is a cheap copy and not genuine.",
        ),
    ),
    Statement(
        -0.3,
        (
            "The {item} stopped working after {days} days.",
            "After {days} days the {item} does not switch on any more.",
            "The {item} broke while we were using it, {days} days after it came.",
            "The {item} has a defect, it fails after a few minutes.",
        ),
    ),
    Statement(
        -0.8,
        (
            "You sent me the wrong {item}, I ordered another colour.",
            "The {item} came in the wrong size, the label on the bag says medium.",
            "This is a different {item} than the one in the picture of your listing.",
            "I got a {item} in another colour by mistake.",
        ),
    ),
    Statement(
        -1.2,
        (
            "The {item} came with a scratch on one side, otherwise it is lovely.",
            "One corner of the {item} is dented, I suppose it was dropped on the way.",
            "There is a small crack in the {item}, sadly.",
            "The {item} has a stain that does not wash out.",
        ),
    ),
)

CONDUCT = (
    Statement(
        1.5,
        (
            "I will not send it back, just refund me.",
            "No, I am not going to return anything, pay me back first.",
            "Returning it is impossible for me, I only accept the money.",
            "I refuse to ship it back to you.",
        ),
    ),
    Statement(
        1.3,
        (
            "Refund today or I leave one star everywhere.",
            "If you do not pay I will write a bad review on your shop.",
            "Pay now, or my bank takes the money by chargeback.",
            "I will report you and open a dispute tonight if I do not get paid.",
        ),
    ),
    Statement(
        1.1,
        (
            "I have no photos, I already threw everything away.",
            "I cannot send a picture, the camera of my phone is broken.",
            "There is no photo because it went into the bin.",
            "Pictures are not necessary, you have to believe me.",
        ),
    ),
    Statement(
        0.7,
        (
            "Send the money to my other account please, not to the card.",
            "Can you refund outside of the platform, by gift card?",
            "I prefer a transfer to the account of my cousin.",
        ),
    ),
    Statement(
        -0.8,
        (
            "A replacement would be fine as well, there is no hurry.",
            "I would also be happy with an exchange.",
            "Could you repair it or send a spare part instead?",
            "A new one instead of the refund is fine for me.",
        ),
    ),
    Statement(
        -1.2,
        (
            "I attach three photos so that you can see it.",
            "Please see the pictures I uploaded, you can see the damage there.",
            "I made a short video that shows the problem, see the attachment.",
            "Here is a photo of it next to the invoice.",
        ),
    ),
    Statement(
        -1.4,
        (
            "I have packed it again and can bring it to the post office tomorrow.",
            "Where should I send it back to? I kept the original box.",
            "I can return it this week, please send me the return label.",
            "It is in its box again, ready for the courier to collect.",
        ),
    ),
)

GREETINGS = (
    "Hello!",
    "Hi there,",
    "Good morning,",
    "Good evening, I write about order {order}.",
    "Dear seller,",
    "Hey,",
    "Hello {name},",
)

SELLER_LINES = (
    "Hello, thank you for your message.",
    "I am sorry to hear that, let me look into order {order}.",
    "Could you tell us a little more, please?",
    "We checked with our warehouse and will come back to you within {days} days.",
    "Thanks for letting us know, my colleague {name} takes over.",
    "Apologies for the trouble & thank you for your patience.",
    "We packed this order ourselves, let us see what happened.",
    "Our team answers between 9 and 5, please bear with us.",
    "Which solution would you prefer?",
    "Understood, I have made a note in your file.",
)

BUYER_LINES = (
    "It was meant as a birthday gift for my sister.",
    "I ordered it {days} days ago from my tablet.",
    "My neighbour bought the same {item} last year.",
    "I paid with my usual card, as always.",
    "The invoice says {name} packed it.",
    "We live on the second floor, by the way.",
    "I did write to you last week, did you see it?",
    "Please answer soon.",
    "Thank you for your help.",
    "We moved to {place} in spring.",
    "Is there anything else you need from me?",
)

EMOJI = ("😀", "😡", "🙏", "📦", "👍🏽", "😢", "❤️", "🎁")

ITEMS = (
    "jacket", "lamp", "phone", "headphones", "watch", "kettle", "backpack", "camera", "blender", "keyboard",
    "dress", "drill", "tent", "puzzle", "necklace", "speaker", "chair", "scooter", "tablet", "coat",
)  # fmt: skip
NAMES = ("Anna", "Luis", "Mei", "Omar", "Priya", "Tom", "Elif", "Jonas", "Sara", "Kenji", "Nadia", "Paul")
PLACES = (
    "Leipzig", "Lyon", "Madrid", "Porto", "Turin", "Ghent", "Graz", "Malmo", "Krakow", "Brno",
    "Dublin", "Leeds", "Utrecht", "Bilbao", "Aarhus", "Split",
)  # fmt: skip
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

TRANSIT = (
    "departed sorting centre",
    "arrived at hub",
    "in transit",
    "customs cleared",
    "loaded on truck",
    "processed at facility",
)

INCIDENTS = (
    Statement(-1.3, ("package damaged during handling", "outer box damaged, taped again", "damage reported by driver")),
    Statement(-0.7, ("delayed by weather", "delay, connection missed", "held back, delay of two days")),
    Statement(-0.4, ("sent to wrong depot", "missorted, forwarded")),
    Statement(0.7, ("weight verified, seal intact", "scanned, seal intact", "inspection passed, weight verified")),
    Statement(0.9, ("delivery address changed by recipient", "redirected to locker on request of recipient")),
)

OUTCOMES = (
    Statement(1.6, ("delivered, signed by recipient", "handed to recipient, signature on file")),
    Statement(1.1, ("delivered, photo of front door taken", "collected from locker with code")),
    Statement(0.2, ("delivered to mailbox", "delivered")),
    Statement(-0.6, ("left with neighbour", "left at reception desk")),
    Statement(-1.2, ("delivery attempt failed, nobody home", "delivery attempt failed, no access to building")),
    Statement(-1.6, ("lost in transit, search opened", "address not found, returned to sender")),
)

MARKETPLACES = {"DE": -0.3, "FR": 0.0, "ES": 0.5, "IT": 0.8, "UK": -0.8, "US": 1.2, "PL": -1.0}
CATEGORIES = {
    "electronics": 1.3,
    "jewelry": 1.0,
    "fashion": 0.5,
    "beauty": 0.2,
    "toys": -0.2,
    "home": -0.6,
    "garden": -0.9,
    "books": -1.3,
}
