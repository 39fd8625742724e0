"""What do logs say: who wrote which line, which lines a rule knows, and how processes ended?"""
