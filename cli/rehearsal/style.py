"""How the report looks: one stylesheet for light, dark, narrow screens and paper.

The hues are Okabe and Ito's, which people with any colour vision can tell apart, darkened to a
contrast of 3 to 1 on light cards; nothing is said by hue alone. Text keeps at least 4.5 to 1.
"""

from __future__ import annotations

_LIGHT = """
--page:#f7f7f5; --card:#ffffff; --ink:#1b1f24; --quiet:#59626d; --line:#e2e4e7; --soft:#f1f2f4;
--off:#6d7681; --on:#0067a8; --on-off:#ffffff; --on-on:#ffffff; --track:#e3e6ea; --hatch:#8b949e;
--good:#00694c; --bad:#ad3b00; --bound:#1b1f24;
--reused:#0072b2; --reprefilled:#c98200; --stale:#c44f00;
--start:#8f98a2; --first-update:#43a283; --generate:#0072b2; --train:#c98200; --update:#006b4f;
--save:#c06695; --stop:#5f6872; --other:#2f8fc4;
"""

_DARK = """
--page:#101317; --card:#171b20; --ink:#e7eaee; --quiet:#a3acb7; --line:#2a3037; --soft:#1f242a;
--off:#98a2ad; --on:#5fb0ee; --on-off:#11151a; --on-on:#0b1620; --track:#2b3138; --hatch:#6b7580;
--good:#4fc9a1; --bad:#ff9a66; --bound:#ffffff;
--reused:#4aa3e0; --reprefilled:#f0b840; --stale:#f07a33;
--start:#68727d; --first-update:#2c7a62; --generate:#4aa3e0; --train:#f0b840; --update:#2bc49a;
--save:#dc9bc0; --stop:#7b848e; --other:#8fd0f7;
"""

_TEXT = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
main,header,footer{max-width:1080px;margin:0 auto;padding:0 24px}
header{padding-top:56px;padding-bottom:8px}
h1{font-size:34px;line-height:1.2;letter-spacing:-.02em;font-weight:650;margin:0 0 12px;
text-wrap:balance}
h2{font-size:22px;line-height:1.3;letter-spacing:-.01em;font-weight:620;margin:0 0 4px}
h3{font-size:17px;line-height:1.35;font-weight:620;margin:0;text-wrap:balance}
h4{font-size:13px;font-weight:600;color:var(--quiet);margin:18px 0 4px}
p{margin:0 0 8px;max-width:72ch} section{margin:56px 0 0} section>p{color:var(--quiet)}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
font-size:.86em}
pre{margin:12px 0;padding:14px 16px;background:var(--soft);border-radius:8px;
white-space:pre;overflow-x:auto}
p code{white-space:nowrap} .evidence code,.quiet code{white-space:normal}
li{margin:0} .notes{margin:0;padding-left:20px;font-size:14px} .notes li+li{margin-top:6px}
a{color:var(--on)} small{font-size:12px;color:var(--quiet);font-weight:400}
footer{padding-top:40px;padding-bottom:56px;color:var(--quiet);font-size:13px}
.quiet,.caution,figcaption p{color:var(--quiet);font-size:14px}
.caution{margin-top:-4px}
.mark{display:inline-grid;place-items:center;width:1.15em;height:1.15em;border-radius:50%;
color:var(--card);font-size:.72em;font-weight:700;margin-right:.45em;vertical-align:.12em}
.mark.good{background:var(--good)} .mark.bad{background:var(--bad)}
.facts{display:flex;flex-wrap:wrap;gap:4px 24px;margin:0;padding:0;list-style:none;
color:var(--quiet);font-size:14px}
"""

_BOXES = """
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:24px;margin:0}
.grid{display:grid;gap:20px;margin-top:20px;grid-template-columns:repeat(2,minmax(0,1fr))}
.grid.three{grid-template-columns:repeat(auto-fit,minmax(260px,1fr))}
.grid.one{grid-template-columns:minmax(0,1fr)}
.fields{display:flex;flex-wrap:wrap;gap:4px 24px;list-style:none;margin:14px 0;padding:0;
font-weight:500}
.card>:last-child{margin-bottom:0} .card>.verdicts,.card>.table:first-child{margin-top:0}
h2+.card{margin-top:16px}
.wide{grid-column:1/-1}
.saved{display:flex;flex-direction:column} .saved .claim{flex:1}
.saved h3{font-size:14px;color:var(--quiet);font-weight:600}
.saved .claim{font-size:22px;line-height:1.25;font-weight:640;letter-spacing:-.01em;
margin:8px 0 14px;text-wrap:balance}
.saved[data-outcome=better] .claim{color:var(--good)}
.saved[data-outcome=worse] .claim,.saved[data-outcome=mixed] .claim{color:var(--bad)}
.pair{display:grid;grid-template-columns:auto 1fr;gap:2px 14px;margin:0 0 8px;font-size:14px}
.pair dt{color:var(--quiet)} .pair dd{margin:0;font-weight:600}
.chip{display:inline-block;border:1px solid var(--line);border-radius:99px;padding:1px 10px;
font-size:13px;font-weight:600;white-space:nowrap}
.chip.native{color:var(--good);border-color:currentColor}
.chip.inject{background:var(--on);border-color:var(--on);color:var(--on-on)}
.chip.unsupported{color:var(--bad);border-color:currentColor} .chip.off{color:var(--quiet)}
.decision{border-top:1px solid var(--line);padding:14px 0 2px;margin-top:14px}
.decision p{margin:4px 0} .table+p{margin-top:14px}
.evidence{margin:6px 0 8px;padding-left:18px;font-size:13px;color:var(--quiet)}
.verdicts{list-style:none;margin:20px 0 0;padding:0}
.verdicts li{display:grid;grid-template-columns:22px 1fr;gap:2px 10px;padding:14px 0;
border-top:1px solid var(--line)}
.verdicts li:first-child{border-top:0;padding-top:0} .verdicts li:last-child{padding-bottom:0}
.verdicts .mark{margin:.35em 0 0} .verdicts strong{font-weight:600}
.verdicts p{grid-column:2;margin:0;color:var(--quiet);font-size:14px;white-space:pre-wrap}
.facts-table{display:grid;grid-template-columns:minmax(110px,auto) 1fr;gap:6px 20px;margin:0;
font-size:14px}
.facts-table dt{color:var(--quiet)} .facts-table dd{margin:0}
details{margin-top:14px} summary{cursor:pointer;color:var(--quiet);font-size:13px;font-weight:600;
width:max-content;max-width:100%;padding:4px 0}
:focus-visible{outline:2px solid var(--on);outline-offset:2px;border-radius:4px}
"""

_TABLES = """
.table{position:relative;overflow-x:auto;margin-top:12px}
table{border-collapse:collapse;width:100%;font-size:14px}
caption{text-align:left;color:var(--quiet);font-size:13px;padding:0 0 8px}
th,td{text-align:left;padding:8px 16px 8px 0;border-top:1px solid var(--line);vertical-align:top;
overflow-wrap:break-word}
thead th{border-top:0;color:var(--quiet);font-weight:600;font-size:13px}
tbody th{font-weight:500} th:last-child,td:last-child{padding-right:0}
.number{text-align:right;white-space:nowrap}
.matrix table{width:auto;min-width:100%} .matrix thead th{vertical-align:bottom;line-height:1.25}
.matrix th small{display:block} .matrix code,.matrix .dot{white-space:nowrap}
.matrix td,.matrix thead th{min-width:84px} .matrix tbody tr:hover{background:var(--soft)}
.matrix th:first-child{position:sticky;left:0;background:var(--card)}
.dot{display:inline-flex;align-items:center;gap:6px}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);
white-space:nowrap}
"""

_PICTURES = """
figure svg{display:block;overflow:visible;margin-left:var(--left,0);
width:calc(100% - var(--left,0px) - var(--right,0px))}
.defs{position:absolute}
figcaption{margin-bottom:14px} figcaption h3{margin-bottom:6px}
svg text{font-size:12px;fill:var(--ink)} svg text.quiet{fill:var(--quiet);font-size:12px}
svg text.group{font-weight:600} svg text.on-off{fill:var(--on-off)}
svg text.on-on{fill:var(--on-on)} svg text.on-off,svg text.on-on{pointer-events:none}
.legend{display:flex;flex-wrap:wrap;gap:6px 18px;list-style:none;margin:0 0 16px;padding:0;
font-size:13px;color:var(--quiet)}
.legend li{display:flex;align-items:center;gap:7px}
figure .legend svg{width:12px;height:12px;margin:0;flex:none;overflow:hidden;border-radius:3px}
.dot svg{width:18px;flex:none}
.run-off{fill:var(--off)} .run-on{fill:var(--on)}
.track{fill:var(--track);stroke:var(--hatch);stroke-width:1}
.reused{fill:var(--reused)} .reprefilled{fill:var(--reprefilled)} .stale{fill:var(--stale)}
.box{stroke:var(--card);stroke-width:1.5} .waiting{fill:url(#hatch)}
.stripe{stroke:var(--hatch);stroke-width:2.4}
.bound{stroke:var(--bound);stroke-width:2}
.casing{stroke:var(--card);stroke-width:4.5}
.legend rect.bound{fill:var(--bound);stroke:none;transform:scaleX(.17);transform-origin:center}
.dot-consulted{fill:var(--on)} .dot-applied{fill:none;stroke:var(--on);stroke-width:2}
rect.dot-applied{stroke-width:5}
.phase-start{fill:var(--start)} .phase-first-update{fill:var(--first-update)}
.phase-generate{fill:var(--generate)} .phase-train{fill:var(--train)}
.phase-update{fill:var(--update)} .phase-save{fill:var(--save)} .phase-stop{fill:var(--stop)}
.phase-other{fill:var(--other)}
"""

_NARROW = """
@media screen and (max-width:760px){
main,header,footer{padding-left:16px;padding-right:16px}
header{padding-top:32px} h1{font-size:27px} section{margin-top:44px}
.card{padding:18px 16px} .grid{grid-template-columns:minmax(0,1fr);gap:14px}
.tight{display:none} .matrix code{white-space:normal}
.matrix th:first-child{min-width:136px;max-width:150px;overflow-wrap:anywhere}
.cards thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.cards table,.cards caption,.cards tbody,.cards tr,.cards th,.cards td{display:block}
.cards th,.cards td{overflow-wrap:anywhere} .cards td>*{min-width:0}
.cards tr{padding:10px 0;border-top:1px solid var(--line)} .cards tr:first-child{border-top:0}
.cards th,.cards td{border:0;padding:2px 0} .cards tbody th{font-weight:600}
.cards td{display:grid;grid-template-columns:112px 1fr;gap:10px;text-align:left;white-space:normal}
.cards td::before{content:attr(data-label);color:var(--quiet)}
.facts-table{grid-template-columns:minmax(0,1fr);gap:0} .facts-table dd{margin-bottom:8px}
}
@media (prefers-reduced-motion:no-preference){html{scroll-behavior:smooth}}
"""

_PAPER = """
@page{margin:16mm}
@media print{
body{background:none;font-size:11pt;print-color-adjust:exact;-webkit-print-color-adjust:exact}
main,header,footer{max-width:none;padding:0} header{padding-top:0}
section{margin-top:28px} .card{border-color:#bbb} h2,h3,h4,summary,caption{break-after:avoid}
.saved,.decision,.verdicts li,figcaption,svg,tr{break-inside:avoid}
.legend{break-after:avoid} .table{overflow:visible}
.grid{display:block} .grid>*+*{margin-top:14px} .matrix th:first-child{position:static}
.grid.three{display:grid;gap:14px;grid-template-columns:repeat(3,minmax(0,1fr))}
.grid.three>*{margin:0} .card{padding:16px}
pre{white-space:pre-wrap}
details::details-content{content-visibility:visible;height:auto}
}
"""

#: The whole stylesheet; the dark values hold on screens only, paper is light.
STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"{_TEXT}{_BOXES}{_TABLES}{_PICTURES}{_NARROW}{_PAPER}"
)
