#include <stdio.h>

int count_vowels(const char *text);

int main(int argc, char **argv)
{
    printf("%d\n", count_vowels(argv[argc - 1]));
    return 0;
}
