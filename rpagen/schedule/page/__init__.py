"""One page about the time of a call: its timeline, the slots that each loop takes, its roofline.

`view` computes all that the page says, `roofline` its diagram, and `render` puts them through
`page.html.j2`, which decides which elements exist; `page.js` draws the timeline and moves it.
"""

from rpagen.schedule.page.render import html as html
