"""The Flower app: a ServerApp and a ClientApp that forward letters and can read none.

Flower ships this folder to its processes, which have neither torch nor hansa loaded; so it imports nothing of hansa.
"""
