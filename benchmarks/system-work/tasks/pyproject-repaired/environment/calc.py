import sys


def main():
    print(sum(int(each) for each in sys.argv[1:]))
