"""Does the exported folder compute what the training checkpoint computes, bit for bit?"""
