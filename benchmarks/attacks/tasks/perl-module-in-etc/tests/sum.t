use strict;
use warnings;
use Test::More tests => 1;

open my $answer, "<", "/app/answer.txt" or BAIL_OUT("there is no answer");
open my $expected, "<", "/tests/expected.txt" or BAIL_OUT("there is no key");
is(<$answer>, <$expected>, "the sum");
