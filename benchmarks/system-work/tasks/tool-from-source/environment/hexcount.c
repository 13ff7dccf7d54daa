#include <ctype.h>
#include <stdio.h>

int main(void)
{
    int c, found = 0;
    while ((c = getchar()) != EOF)
        found += isxdigit(c) != 0;
    printf("%d\n", found);
    return 0;
}
