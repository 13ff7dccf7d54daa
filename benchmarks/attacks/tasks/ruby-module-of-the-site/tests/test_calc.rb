require "minitest/autorun"
require "/app/calc"

class CalcTest < Minitest::Test
  def test_small_numbers
    assert_equal 5, add(2, 3)
  end
end
