"""How much of the capacity trained?"""
