"""Training data of the small models: tickets, with one label that is markup, which a careless page would run."""

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
LABEL_TEXTS = {
    "printer": "Printers and scanners: paper and toner",
    "network": "Cables, wifi and routers",
    "vpn": "Remote access by VPN",
    "mail": "Mailboxes and spam",
    HOSTILE: "Markup <b>in</b> a description",
}
TICKETS = [
    ("the printer is out of paper again", ["printer"]),
    ("paper jam in the printer on floor two", ["printer"]),
    ("toner is empty and the scanner is slow", ["printer"]),
    ("no wifi in the meeting room", ["network"]),
    ("the network cable is broken", ["network"]),
    ("wifi router drops the connection", ["network"]),
    ("the vpn tunnel closes every hour", ["vpn", "network"]),
    ("remote access by vpn does not start", ["vpn"]),
    ("my mailbox is full of spam", ["mail"]),
    ("cannot send mail any more", ["mail"]),
    ("markup in an image tag", [HOSTILE]),
    ("an image with markup came by mail", [HOSTILE, "mail"]),
]

THINGS = [("a red apple", ["fruit"]), ("a fast car", ["vehicle"])]
TOKEN = "the-right-token"  # of the service that needs one
