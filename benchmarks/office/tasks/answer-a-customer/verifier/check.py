"""Dirk Pauwels has both answers, from the sheet that is valid."""

from office_check import Check
from office_check.outcomes import numbers, recipients, sent_mails, strays

check = Check()
dirk = check.mail.people["dirk"].email
mails = sent_mails(check, to=dirk)
text = "\n".join(mail.body for mail in mails)
named = numbers(text)

check.item("Dirk has an answer", bool(mails), "nobody wrote to him")
lasts = 31 in named or check.says(text, "2 years and 7 months", "two years and seven months", "2 years, 7 months")
check.item("how long a battery lasts", lasts, f"31 months are not among {named}", weight=2)
frost = check.says(text, "-35", "- 35", "minus 35", "35 °C below", "35 degrees below")
check.item("how cold it may be stored", frost, "-35 °C is not there", weight=2)

withdrawn = {31: 26 in named, 35: 30 in named}
check.forbid(
    "it is from the withdrawn sheet", [n for n, other in withdrawn.items() if other and n not in named], cap=0.4
)
check.forbid(
    "something else was changed",
    strays(check, mail_messages=lambda row: row.folder == "sent" and check.outside(recipients(row)) <= {dirk}),
    cap=0.4,
)
check.finish()
