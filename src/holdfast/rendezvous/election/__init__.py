"""Which node leads, and may it still?"""
