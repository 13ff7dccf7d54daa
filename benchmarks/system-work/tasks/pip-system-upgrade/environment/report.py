import figures

print("sum:", sum(figures.read("12, 13, 17")))
