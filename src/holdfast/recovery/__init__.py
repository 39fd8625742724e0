"""What next, after a failure?"""
