"""The way of uploads from clients to what is learnt: compression, secure sums, and noise with the account of its worth.

A channel is a layer around an algorithm, or around a session; what it is made of and knows neither is in this room.
"""
