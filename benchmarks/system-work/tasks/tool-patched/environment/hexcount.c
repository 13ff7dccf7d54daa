#include <ctype.h>
#include <stdio.h>

int main(void)
{
    int c, found = 0;
    while ((c = getchar()) != EOF)
        found += (isdigit(c) || (c >= 'a' && c <= 'f'));
    printf("%d\n", found);
    return 0;
}
