# The sum of two numbers.
def add(a, b)
  raise NotImplementedError
end
