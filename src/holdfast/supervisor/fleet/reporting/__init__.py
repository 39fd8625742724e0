"""Who reports to the supervisor, who may, who is silent, and who is forgotten?"""
