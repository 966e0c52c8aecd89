"""The service and the command line: who asks, may they, and in which form do they want the answer?"""
