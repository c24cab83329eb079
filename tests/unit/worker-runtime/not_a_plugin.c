/* A shared object that knows nothing of backends, for test_backend. */

int answer(void);

int answer(void)
{
    return 42;
}
