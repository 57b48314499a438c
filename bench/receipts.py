"""How often control builds the receipt of a fall: whatever a receipt costs, a fall pays so many times.

A receipt is counted where one is made: `Receipt` itself, and `msgspec.structs.replace` of one, which is how a rule of
`core.receipt` adds to a receipt. The two are counted as one build if the second only completes the first.
"""
