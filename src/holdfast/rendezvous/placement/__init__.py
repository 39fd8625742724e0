"""Which node gets which ranks, and which node keeps whose state?"""
