"""Ten times too many requests for eight slots, and the reading of what came of them.

Gateway, engines and clients are processes of their own; what is left in this one watches and judges.
"""
