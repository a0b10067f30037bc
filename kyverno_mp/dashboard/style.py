"""Define the style sheet of all pages: light and dark, from phones to wide screens.

Room: dashboard. Takes: nothing. Gives: STYLE. Next: markup.py, which puts it into pages
and its digest into the Content-Security-Policy. May touch: nothing outside its
arguments.

The text colours have a contrast of at least 4.5 to 1 on their backgrounds, those of the
bars 3 to 1 (WCAG 2.2, 1.4.3 and 1.4.11).
"""

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1f24; --soft: #57606a;
  --line: #d0d7de; --head: #f3f5f7; --link: #0550ae; --fail: #b42318; --error: #7a3ea8;
  --warn: #946200; --pass: #1a7f37; --skip: #6e7781; }
@media (prefers-color-scheme: dark) {
  :root { --back: #12161c; --text: #e6eaef; --soft: #a3adb8; --line: #39424d;
    --head: #1c222a; --link: #7ab7ff; --fail: #ff7b72; --error: #d2a8ff;
    --warn: #e3b341; --pass: #56d364; --skip: #8b949e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
header, main, footer { max-width: 90rem; margin: 0 auto; padding: 0 1.5rem; }
footer { color: var(--soft); padding-bottom: 1.5rem; }
h1 { font-size: 1.6rem; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip-link { position: absolute; left: -100rem; }
.skip-link:focus { left: 1rem; top: 1rem; background: var(--back); padding: .5rem; }
nav ul, .totals { list-style: none; margin: 0; padding: 0; display: flex;
  flex-wrap: wrap; gap: .25rem 1.25rem; }
.totals { gap: .75rem; margin: 1rem 0; }
.total { border: 1px solid var(--line); border-left: .4rem solid;
  border-radius: .3rem; padding: .4rem .9rem; min-width: 8rem; }
.total span { color: var(--text); }
.total .number { display: block; font-size: 1.6rem; font-weight: 600; }
.total .share { color: var(--soft); }
.total.fail { border-left-color: var(--fail); }
.total.error { border-left-color: var(--error); }
.total.warn { border-left-color: var(--warn); }
.total.pass { border-left-color: var(--pass); }
.total.skip { border-left-color: var(--skip); }
.bar { display: block; width: 100%; border-radius: .2rem; }
.bar.overall { height: 1.2rem; }
.bar.row { height: .8rem; }
rect.fail { fill: var(--fail); } rect.error { fill: var(--error); }
rect.warn { fill: var(--warn); } rect.pass { fill: var(--pass); }
rect.skip { fill: var(--skip); }
.wide { position: relative; overflow-x: auto; border: 1px solid var(--line);
  border-radius: .3rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem;
  border-top: 1px solid var(--line); }
thead th { background: var(--head); border-top: 0; white-space: nowrap; }
tbody th { font-weight: 500; overflow-wrap: anywhere; min-width: 10rem; }
td { overflow-wrap: anywhere; min-width: 6.5rem; }
.chart { min-width: 10rem; width: 40%; vertical-align: middle; }
.count { text-align: right; min-width: 0; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.count.fail, .mark.fail { color: var(--fail); }
.count.error, .mark.error { color: var(--error); }
.count.warn, .mark.warn { color: var(--warn); }
.mark.pass { color: var(--pass); }
.word { white-space: nowrap; max-width: 16rem; overflow: hidden;
  text-overflow: ellipsis; }
.none, .mark.skip { color: var(--soft); }
.mark { font-weight: 600; }
.message { min-width: 18rem; white-space: pre-wrap; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); white-space: nowrap; }
.soft { color: var(--soft); }
.site { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem 1.5rem;
  padding-top: 1rem; padding-bottom: .75rem; border-bottom: 1px solid var(--line); }
.brand { font-weight: 700; font-size: 1.1rem; text-decoration: none; }
.site nav { flex-basis: 100%; }
nav a { display: inline-block; padding: .15rem 0; }
nav a[aria-current] { color: var(--text); font-weight: 600; text-decoration: none;
  border-bottom: .2rem solid var(--link); }
.state { font-size: .9rem; overflow-wrap: anywhere; }
.state::before { content: ""; display: inline-block; width: .7rem; height: .7rem;
  border-radius: 50%; margin-right: .4rem; background: currentColor; }
.ready { color: var(--pass); } .unready { color: var(--fail); }
main:focus { outline: none; }
.notices { margin: 1rem 0; padding: .6rem 1rem .6rem 2rem; background: var(--head);
  border-left: .4rem solid var(--warn); border-radius: .3rem; overflow-wrap: anywhere; }
figure { margin: 1.25rem 0 0; }
.columns { display: block; width: 100%; height: 9rem; background: var(--head);
  border-bottom: 1px solid var(--line); border-radius: .3rem .3rem 0 0; }
.axis { display: flex; justify-content: space-between; color: var(--soft);
  font-size: .8rem; font-variant-numeric: tabular-nums; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .25rem; }
.trend { min-width: 6rem; vertical-align: middle; }
tr:hover > * { background: var(--head); }
.spark { display: block; width: 6rem; height: 1.2rem; }
.spark polyline { fill: none; stroke: var(--fail); stroke-width: 2;
  vector-effect: non-scaling-stroke; }
.gauge { display: inline-block; width: 6rem; height: .7rem; margin-right: .6rem;
  background: var(--head); border-radius: .2rem; }
.gauge rect { fill: var(--link); }
.choices ul, .pager ul { margin: 1rem 0 .25rem; }
.pager p { margin: .25rem 0; color: var(--soft); }
.filters { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: end;
  margin: 1rem 0; padding: .9rem 1rem; background: var(--head); border-radius: .3rem; }
.filters p { margin: 0; }
.filters label { display: block; font-size: .85rem; color: var(--soft); }
input, select, button { font: inherit; color: var(--text); background: var(--back);
  border: 1px solid var(--skip); border-radius: .3rem; padding: .3rem .6rem;
  max-width: 100%; }
button { cursor: pointer; background: var(--link); color: var(--back);
  border-color: var(--link); font-weight: 600; margin-right: .6rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.5rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
td ul { margin: 0; padding-left: 1.1rem; }
@media print { .wide { overflow: visible; } nav, .skip-link { display: none; } }
"""
