"""Style sheets of the pages: light and dark, for screens of every width and for print."""

# All pages.
BASE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --line: #d4d4d4; --soft: #f4f4f4; --faint: #5c5c5c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181b; --line: #41454b; --soft: #212429; --faint: #a8adb5; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
h3 { margin: 2rem 0 .6rem; font-size: 1.05rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td { white-space: nowrap; }
thead th { border-bottom-width: 2px; }
figure { margin: 1.5rem 0; }
figcaption, .faint { color: var(--faint); font-size: .9rem; } a { color: inherit; }
"""

# The page of an evaluation. Plots take its colours by name (`gptd_rl.report.svg`).
EVALUATION = """
:root { --font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; --model: #0b5fa5;
  --critic: #b4530a; --other: #4d7c2a; --shade: #dfe9f3; --card: #f7f8fa; --good: #1d6f42; --bad: #a8320e;
  --alert: #fdf3e7; --shadow: #00000038; }
@media (prefers-color-scheme: dark) { :root { --model: #78b7f2; --critic: #f0a45c; --other: #a3cf7a; --shade: #26394d;
  --card: #1e2126; --good: #7fd1a0; --bad: #f79a76; --alert: #33281b; --shadow: #000000b0; } }
body { font-family: var(--font); padding: 3rem 1.25rem 5rem; max-width: 62rem; }
p, li, dd, figcaption { max-width: 44rem; text-wrap: pretty; overflow-wrap: anywhere; }
.facts { max-width: none; margin: 0; }
h1 { font-size: clamp(1.7rem, 5vw, 2.5rem); letter-spacing: -.02em; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { margin: 4.5rem 0 1rem; padding-bottom: .4rem; font-size: 1.35rem; letter-spacing: -.01em; line-height: 1.3; }
h3 { font-size: 1rem; }
.verdict { font-size: 1.15rem; margin: 1.8rem 0; padding-left: 1rem; border-left: 4px solid var(--faint); }
.verdict.calibrated { border-color: var(--good); } .verdict.narrow, .verdict.wide { border-color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
.card { background: var(--card); border-radius: 12px; padding: 1.25rem 1.4rem; overflow-wrap: anywhere; }
.card h2 { margin: 0; padding: 0; border: 0; font-size: .82rem; font-weight: 600; color: var(--faint);
  letter-spacing: .02em; }
.card p { margin: .35rem 0 0; font-size: .92rem; } .card .big { font-size: 2.3rem; line-height: 1.2; font-weight: 650;
  letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.card .big small { font-size: 1rem; font-weight: 400; letter-spacing: 0; color: var(--faint);
  display: inline-block; line-height: 1.4; }
.card:first-child .big { font-size: 3rem; color: var(--model); } .card .phrase { font-size: 1.5rem; line-height: 1.35; }
.warnings { background: var(--alert); border-radius: 12px; padding: 1rem 1.4rem; margin: 1rem 0 0; }
.warnings h2 { margin: 0; padding: 0; border: 0; font-size: 1rem; color: var(--bad); }
.warnings p { margin: 0; } .warnings ul { margin: .4rem 0 0; padding-left: 1.2rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1.5rem 2.5rem;
  align-items: start; margin: 1.5rem 0; } .pair > * { min-width: 0; margin: 0; }
.pair > div > :first-child { margin-top: 0; }
figure svg { display: block; width: 100%; height: auto; max-width: 34rem; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { margin-top: .6rem; line-height: 1.5; }
caption { text-align: left; color: var(--faint); padding-bottom: .5rem; }
caption span { display: inline-block; position: sticky; left: 0; max-width: min(44rem, 100vw - 2.5rem); }
table { width: 100%; } tbody th { font-weight: 600; } td, tbody th { white-space: nowrap; }
thead th { vertical-align: bottom; }
td, th { padding-right: 1.1rem; } .numbers td, .numbers thead th { text-align: right; }
td:last-child, th:last-child { padding-right: 0; } .named thead th:first-child { text-align: left; }
/* A table that goes on beyond an edge has a shadow there: covers scroll with the table, shadows stay. */
.wide { background: linear-gradient(to right, var(--paper) 40%, transparent) left / 3rem 100% local no-repeat,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 3rem 100% local no-repeat,
  linear-gradient(to right, var(--shadow), transparent) left / .9rem 100% scroll no-repeat,
  linear-gradient(to left, var(--shadow), transparent) right / .9rem 100% scroll no-repeat; }
.wide { margin: 1.5rem 0; } .wide:focus-visible { outline: 2px solid var(--model); outline-offset: 4px; }
dt { font-weight: 600; } dd { margin: 0 0 .8rem; } code { overflow-wrap: anywhere; font-size: .9em;
  background: var(--card); padding: .1em .35em; border-radius: 4px; }
button { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  cursor: pointer; } button:hover { border-color: var(--faint); }
:is(button, input, .points):focus-visible { outline: 2px solid var(--model); outline-offset: 2px; }
.points circle { fill: none; } .points .on { stroke: var(--ink); stroke-width: 1.4px; }
.tip { position: absolute; z-index: 2; max-width: min(22rem, 100vw - 2rem); padding: .45rem .7rem; font-size: .82rem;
  line-height: 1.4; white-space: pre-line; color: var(--ink); background: var(--card); border: 1px solid var(--faint);
  border-radius: 8px; pointer-events: none; overflow-wrap: anywhere; box-sizing: border-box; }
.save { display: flex; gap: .4rem; justify-content: flex-end; max-width: 34rem; margin-top: .2rem; }
.save button { font-size: .72rem; padding: .1rem .5rem; color: var(--faint); background: none; border-radius: 6px; }
.player { background: var(--card); border-radius: 12px; padding: clamp(.8rem, 3vw, 1.4rem); display: grid;
  gap: 1rem 1.6rem; grid-template-columns: minmax(0, 1fr); align-items: start; }
.player > * { min-width: 0; margin: 0; }
.player figure { margin: 0; } .player button { background: var(--paper); }
.player [hidden] { display: none; }
.tabs { display: flex; flex-wrap: wrap; gap: .5rem; } @media (max-width: 30rem) { .tabs small { display: block; } }
 .tabs button { padding: .35rem .9rem; }
.tabs button[aria-pressed=true] { border-color: var(--model); box-shadow: inset 0 0 0 1px var(--model); }
.tabs small { color: var(--faint); } .screen img { display: block; width: 100%; max-width: 22rem; max-height: 22rem;
  object-fit: contain; border-radius: 8px; border: 1px solid var(--line); box-sizing: border-box; background: #fff; }
.controls { display: flex; gap: .8rem; align-items: center; } .controls input { flex: 1; min-width: 0;
  accent-color: var(--model); height: 1.8rem; } .play { width: 2.8rem; height: 2.4rem; flex: none; }
.player:not(.live) .readout { display: none; }
.readout { display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: .5rem 1rem; }
.readout dt { font-size: .78rem; font-weight: 400; color: var(--faint); overflow-wrap: anywhere; }
.readout dd { margin: 0; font-variant-numeric: tabular-nums; }
.player svg { touch-action: pan-y; cursor: crosshair; } .cursor { stroke: var(--ink); stroke-width: 1.2px; }
.tabs { grid-area: tabs; } .screen { grid-area: screen; } .controls { grid-area: controls; }
.curves { grid-area: curves; } .readout { grid-area: readout; }
.player { grid-template-areas: "tabs" "screen" "controls" "curves" "readout"; }
@media (min-width: 46rem) { .player { grid-template-columns: minmax(0, 5fr) minmax(0, 6fr);
  grid-template-rows: auto auto auto 1fr;
  grid-template-areas: "tabs tabs" "screen curves" "controls curves" "readout curves"; } }
@media print { .save, .tip, .controls, .tabs { display: none; } }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } h2 { margin-top: 2rem; break-after: avoid; }
  figure, .card, .warnings, tr { break-inside: avoid; } .card, .warnings { border: 1px solid var(--line); }
  .pair, .cards { grid-template-columns: 1fr 1fr; } .wide { overflow: visible; } }
"""

# The page of the reproduction.
REPRODUCTION = """
.claims td:nth-child(2), .comparison td:last-child { white-space: normal; min-width: 18rem; }
tr.held td:nth-child(3)::before { content: "✓ "; } tr.not td:nth-child(3)::before { content: "✗ "; }
tr.not { background: var(--soft); font-weight: 600; }
figure img { max-width: 100%; background: #fff; padding: 6px; border-radius: 6px; box-sizing: border-box;
  border: 1px solid var(--line); }
"""
