"""Other people's software, each behind one module that is loaded by name: who does not use it does not pay for it."""
