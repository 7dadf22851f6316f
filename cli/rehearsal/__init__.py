"""`miles rehearse`: the real loop on a CPU, with features off and on, and what they saved.

result      what a rehearsal found, as typed values
quantities  numbers to the words that people read
findings    what the two runs show, in sentences that claim no more than that
report      the HTML file: sections/ in the order of reading, charts/ with its pictures
summary     the same facts in a terminal
"""
