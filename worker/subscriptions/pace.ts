/** Key and debounce of deliveries to Bots, from the extensions of the Bot. */
import { type FoundBot, resolveAuthorSession, toFoundBot } from '../../shared/bots/bot.ts'
import { debounceMs, readEventPace } from '../../shared/bots/pace.ts'
import { Cache, getOrStart } from '../../shared/core/cache.ts'
import { ignoreClientError } from '../../shared/core/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/request/services.ts'
import type { MatchOptions, PacedEvent } from '../../shared/subscriptions/events.ts'
import type { DeliveryPace } from '../../shared/subscriptions/new-deliveries.ts'

/** A deployment by another process takes effect within this time. */
const FRESH_MS = 500

type ReadPace = MatchOptions['pace']

/** One read for each bot and author within half a second. */
export function createPaceReader(services: Services): ReadPace {
  const bots = new Cache<string, Promise<FoundBot | undefined>>({
    name: 'bots-by-subscription',
    max: 1000,
    ttlMs: FRESH_MS,
    types: ['Bot'],
  })
  return async (subscription, project, about) => {
    const { author, project: home } = subscription.meta ?? {}
    const key = JSON.stringify([project, home, author, about.bot])
    const found = await getOrStart(bots, key, () =>
      findBot(services, subscription, project, about.bot),
    )
    return found === undefined ? {} : readDeliveryPace(found, about)
  }
}

/** Undefined for a Bot that the delivery will report as not visible. */
async function findBot(
  services: Services,
  subscription: Resource,
  project: number,
  id: string,
): Promise<FoundBot | undefined> {
  const author = await resolveAuthorSession(services, subscription, project)
  if (author === undefined) return undefined
  return await services.repository
    .read(author.principal, 'Bot', id)
    .then(toFoundBot)
    .catch(ignoreClientError)
}

/** The key of a deletion is that of the deleted resource. */
function readDeliveryPace(found: FoundBot, { terms, event }: PacedEvent): DeliveryPace {
  const headers = terms.hook?.headers.map(([name, value]) => [name.toLowerCase(), value]) ?? []
  const { turn } = readEventPace(found, {
    headers: Object.fromEntries(headers),
    inputKind: 'json',
    input: event.subject.content ?? undefined,
  })
  const ms = debounceMs(found.bot)
  return {
    ...(turn === undefined ? {} : { turn }),
    ...(ms === undefined ? {} : { debounceMs: ms }),
  }
}
