"""The way of uploads from clients to what is learnt: the noise that protects them, and the account of what it is worth.

A channel is a layer around an algorithm; what it is made of and knows no algorithm is in this room.
"""
