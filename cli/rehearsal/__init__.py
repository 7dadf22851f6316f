"""`miles rehearse`: the real loop on a CPU, with features off and on, and what they saved.

result      what a rehearsal found, as typed values
quantities  numbers to the words that people read
json_words  the plan and the machine, which stay JSON, to words
findings    what the two runs show, in sentences that claim no more than that
markup      HTML and SVG as values that escape what goes in
charts      what pictures are drawn from; charts_*: one file per subject
sections    the parts of the report in the order of reading, with sections_plan
style       how it looks
report      the HTML file
summary     the same facts in a terminal
"""
