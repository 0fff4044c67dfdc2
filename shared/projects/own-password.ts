/** The password that a person who is signed in gives once more. */
import { provenApplicant } from '../access/credentials/hashing.ts'
import { verifyPassword } from '../access/credentials/passwords.ts'
import type { Resource } from '../fhir/resource.ts'
import { judgeGuess, requireNoPause, sessionGuess } from '../identity/guesses.ts'
import type { Services } from '../services.ts'

/** `user` is the one of the caller's session, with secrets. Errors: 429. */
export async function isOwnPassword(
  { redis, hashing }: Pick<Services, 'redis' | 'hashing'>,
  user: Resource,
  password: string,
): Promise<boolean> {
  const id = user.id ?? ''
  const guessed = sessionGuess('password', id)
  const stored = typeof user.passwordHash === 'string' ? user.passwordHash : undefined
  await requireNoPause(redis, guessed)
  const found = await hashing.run(provenApplicant(id), () =>
    judgeGuess(redis, guessed, id, async () => {
      return (await verifyPassword(password, stored)) ? stored : undefined
    }),
  )
  return found !== undefined
}
