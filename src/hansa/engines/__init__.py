"""Engines: where and how the visits of a round are carried out.  Results do not depend on the engine."""
