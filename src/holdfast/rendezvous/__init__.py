"""Who takes part, with which ranks?"""
