int count_vowels(const char *text)
{
    int found = 0;
    for (; *text; text++)
        if (*text == 'a' || *text == 'e' || *text == 'i' || *text == 'o' || *text == 'u')
            found++;
    return found;
}
