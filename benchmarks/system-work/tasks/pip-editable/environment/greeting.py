import sys


def main():
    print(f"Hello, {sys.argv[1]}!")
