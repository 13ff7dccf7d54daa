import unittest

from calc import add


class TestAdd(unittest.TestCase):
    def test_small_numbers(self):
        self.assertEqual(add(2, 3), 5)

    def test_negative_numbers(self):
        self.assertEqual(add(-7, 3), -4)


if __name__ == "__main__":
    unittest.main()
