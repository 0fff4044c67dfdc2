/** The accounts of a request: the load it causes, and an AuditEvent for each group of reads. */
import { systemPrincipal } from '../access/principal.ts'
import type { Resource } from '../fhir/resource.ts'
import { plainLog } from '../log.ts'
import { restEvent } from '../request/admin-audit.ts'
import { charge } from '../request/quota.ts'
import type { Interaction } from '../request/request.ts'

/** The reads of one statement, or of several of one search. */
export interface ReadGroup {
  readonly interaction: 'read' | 'search-type'
  readonly types: readonly string[]
  /** Query string of a search; it may quote what is searched for. */
  readonly query?: string
  /** Resources that a nested list hangs on. */
  readonly parents?: number
  readonly count: number
}

export interface Account {
  /** Errors: 429. */
  charge(units: number): Promise<void>
  add(group: ReadGroup): void
  /** The value of the `RateLimit` header; undefined where there is no quota. */
  readonly rateLimit: string | undefined
  /** Logs what was read, in the background: no answer waits for it, and none fails with it. */
  close(): void
}

export function openAccount({ services, principal, request }: Interaction): Account {
  const groups: ReadGroup[] = []
  const { log, repository, config } = services
  const { project } = principal
  let rateLimit: string | undefined
  return {
    async charge(units) {
      rateLimit = (await charge(services, principal, { request, units })) ?? rateLimit
    },
    add(group) {
      groups.push(group)
    },
    get rateLimit() {
      return rateLimit
    },
    close() {
      const logged = groups.splice(0)
      if (config.graphqlAudit === 'log') {
        for (const { query: _query, ...group } of logged) {
          plainLog(log).info({ auditEvent: eventOf(group) }, 'GraphQL read')
        }
        return
      }
      const { profile, profileDisplay } = principal
      const writer = { ...systemPrincipal(project), profile, profileDisplay }
      const written = Promise.all(logged.map((group) => repository.create(writer, eventOf(group))))
      written.catch((cause: unknown) => log.error({ cause }, 'AuditEvents were lost'))
    },
  }

  function eventOf({ interaction, types, query, parents, count }: ReadGroup): Resource {
    const numbers = Object.entries({ count, parents }).filter(([, number]) => number !== undefined)
    const entity = {
      description: types.join(', '),
      ...(query === undefined ? {} : { query: Buffer.from(query).toString('base64') }),
      detail: numbers.map(([type, number]) => ({ type, valueString: String(number) })),
    }
    return restEvent(principal, project, interaction, entity)
  }
}
