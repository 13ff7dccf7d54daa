check:
	python3 -m pytest -q $(TESTS)
