"""Style sheet of the report, for screen and print."""

from __future__ import annotations

from zipfel.design import variables

CSS = (
    f"""
:root {{ {variables()} }}"""
    + """
* { box-sizing: border-box; }
html { background: var(--paper); }
body { margin: 0; color: var(--ink); font: 16px/1.5 var(--sans);
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
main { max-width: 58rem; margin: 2rem auto; padding: 3rem 3.5rem 4rem; background: var(--sheet);
  box-shadow: 0 1px 3px rgb(0 0 0 / .12); }
h1 { margin: 0; font-size: 2.1rem; font-weight: 650; letter-spacing: -.02em; line-height: 1.15;
  overflow-wrap: anywhere; }
h1 span { color: var(--soft); font-weight: 300; }
h2 { margin: 3rem 0 1rem; padding-bottom: .35rem; border-bottom: 2px solid var(--ink); font-size: 1.15rem;
  font-weight: 650; letter-spacing: -.01em; }
h3 { margin: 0 0 .6rem; font-size: .85rem; font-weight: 600; }
h3 span { margin-left: .6em; color: var(--soft); font-weight: 400; }
h4 { margin: 0 0 .3rem; color: var(--soft); font-size: .7rem; font-weight: 600; letter-spacing: .06em;
  text-transform: uppercase; }
.lead { margin: .4rem 0 0; color: var(--soft); }
.headline { display: flex; flex-wrap: wrap; gap: .5rem 2.6rem; margin: 1.8rem 0 0; }
.headline dd { margin: 0; color: var(--accent); font-size: 2.3rem; font-weight: 300; letter-spacing: -.03em;
  line-height: 1.1; font-variant-numeric: tabular-nums; }
.headline dt { color: var(--soft); font-size: .8rem; }
.note { margin: .6rem 0 1rem; color: var(--soft); font-size: .8rem; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem 3rem;
  align-items: start; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem 2.5rem; }
figure { margin: 1rem 0; }
.settings .columns { display: block; columns: 18rem 2; column-gap: 3rem; }
.settings table { margin-bottom: 1.6rem; break-inside: avoid; }
figure svg { display: block; width: 100%; max-width: 30rem; height: auto; font-family: inherit; }
.metrics figure svg { margin: 0 auto; }
.metrics figcaption { text-align: center; }
figcaption { margin-top: .4rem; color: var(--soft); font-size: .8rem; }
table { width: 100%; border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
caption { padding-bottom: .3rem; text-align: left; font-weight: 600; }
th { padding: .25rem .5rem; border-bottom: 1px solid var(--ink); text-align: right; font-weight: 500;
  color: var(--soft); vertical-align: bottom; }
td { padding: .22rem .5rem; border-bottom: 1px solid var(--track); text-align: right; vertical-align: top;
  overflow-wrap: anywhere; }
th:first-child, td:first-child { padding-left: 0; text-align: left; }
th:last-child, td:last-child { padding-right: 0; }
.most td:nth-child(2), .most th:nth-child(2) { text-align: left; }
.most td:nth-child(n+3) { white-space: nowrap; }
article { margin: 0 0 1.6rem; padding-top: 1rem; border-top: 1px solid var(--track); }
h2 + .note + article { border-top: 0; padding-top: 0; }
blockquote { margin: 0 0 .8rem; font-size: .95rem; white-space: pre-line; overflow-wrap: anywhere; }
.features { font-size: .85rem; line-height: 1.9; }
mark { padding: .08em 0; border-radius: .15em; color: inherit; }
mark.for { background: color-mix(in srgb, var(--accent) calc(var(--w) * 34%), transparent); }
mark.against { background: color-mix(in srgb, var(--against) calc(var(--w) * 34%), transparent); }
.said { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: .6rem 2.5rem;
  font-size: .82rem; }
.said ul { margin: 0; padding: 0; list-style: none; }
.said li { display: flex; gap: .7rem; padding: .12rem 0; align-items: baseline; }
.said b { position: relative; flex: 0 0 4.2rem; padding-bottom: .1rem; font-weight: 500; text-align: right;
  font-variant-numeric: tabular-nums; }
.said b i { position: absolute; right: 0; bottom: 0; height: 2px; border-radius: 1px; background: currentcolor; }
.said li > span { min-width: 0; overflow-wrap: anywhere; }
.right b { color: var(--accent); }
.wrong b { color: var(--against); }
.right > span::before { content: "✓ "; color: var(--accent); }
.wrong > span::before { content: "✗ "; color: var(--against); }
.missed b { color: var(--soft); font-weight: 400; }
em { color: var(--soft); font-style: normal; }
small { color: var(--soft); font-size: .8em; }
@media screen and (max-width: 40rem) { main { margin: 0; padding: 1.5rem 1.2rem; } .headline { gap: .5rem 1.6rem; }
  table { display: block; overflow-x: auto; } }
@page { size: A4; margin: 16mm 17mm; }
@media print {
  :root { color-scheme: light; }
  html { background: none; font-size: 13px; }
  body { font-size: 13px; }
  main { max-width: none; margin: 0; padding: 0; box-shadow: none; }
  h2 { margin-top: 2.2rem; break-after: avoid; }
  h3, h4, caption, .note { break-after: avoid; }
  figure, article, tr, .headline, .note, .pair { break-inside: avoid; }
  .metrics table { break-inside: avoid; }
  thead { display: table-header-group; }
  p, blockquote { orphans: 3; widows: 3; }
  .columns, .said { grid-template-columns: 1fr 1fr; }
  .pair { grid-template-columns: 1fr 1fr; }
}
"""
)
