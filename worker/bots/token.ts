/**
 * Access tokens for bots that ask for one: most never do, so none is made beforehand. A token
 * reaches as far as its run, and ends with it.
 */
import { systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import { parseReference } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/identity/principals.ts'
import { createMemberLogin } from '../../shared/projects/signed-in-user.ts'
import type { Services } from '../../shared/services.ts'

const SLACK_S = 60
const system = systemPrincipal(SYSTEM_PROJECT)

export interface RunToken extends AsyncDisposable {
  /** The one of the run, made when it is first asked for. */
  take(): Promise<string>
}

/**
 * Disposing it revokes its Login: at once, within 5 s where Redis is away. Should the worker die, the
 * token outlives the run's wall limit by a minute at most.
 */
export function createRunToken(services: Services, session: Session, wallMs: number): RunToken {
  let login: Promise<string> | undefined
  let token: Promise<string> | undefined

  async function issue(): Promise<string> {
    const { principal } = session
    login = createMemberLogin(services, session, 'execute')
    const loginId = await login
    return await services.tokens.issue({
      loginId,
      subject: parseReference(principal.profile)?.id ?? loginId,
      clientId: undefined,
      profile: principal.profile ?? '',
      scope: principal.scope,
      lifetimeSeconds: Math.ceil(wallMs / 1000) + SLACK_S,
    })
  }

  return {
    take() {
      token ??= issue()
      return token
    },
    async [Symbol.asyncDispose]() {
      const id = await login?.catch(() => undefined)
      if (id === undefined) return
      const { repository, log } = services
      try {
        await repository.patch(system, { type: 'Login', id }, (found) => ({
          ...found,
          revoked: true,
        }))
      } catch (cause) {
        log.warn({ cause, login: id }, 'The token of a bot run could not be ended')
      }
    },
  }
}
