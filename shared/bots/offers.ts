/** The Bots that a caller may run and that offer themselves to clients: tools of language models, CDS services. */
import { oldestFirst } from '../access/guarded/definitions.ts'
import { may } from '../access/policy.ts'
import { callerKey, type Principal } from '../access/principal.ts'
import { Cache, getOrStart } from '../core/cache.ts'
import { badRequest, HttpError } from '../core/errors.ts'
import { yieldTurn } from '../core/yielding.ts'
import { type CdsService, parseCdsService } from '../fhir/bot-cds.ts'
import { type BotTool, parseBotTool } from '../fhir/bot-tool.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Services } from '../request/services.ts'
import { searchFor } from '../store/lookups.ts'
import { type FoundBot, findProblem, toFoundBot } from './bot.ts'

export interface OfferedTool extends BotTool {
  readonly botId: string
}

export interface OfferedService extends CdsService {
  readonly botId: string
}

/** A Bot offers a tool, a service, or both. */
interface Offer {
  readonly botId: string
  readonly tool: BotTool | undefined
  readonly service: CdsService | undefined
}

/** A deployment by another process takes effect within this time plus one read. */
const FRESH_MS = 2000
const CACHED_CALLERS = 200
const PAGE = 100
/** More Bots than that are rejected, since a client gets all tools at once. */
const MOST_BOTS = 1000

const cache = new Cache<string, Promise<readonly Offer[]>>({
  name: 'offered-bots',
  max: CACHED_CALLERS,
  ttlMs: FRESH_MS,
  types: ['Bot'],
})

/** Returns the tools of all Bots that the caller may run. Of several with one name, the oldest Bot has it. */
export async function listTools(
  services: Services,
  principal: Principal,
): Promise<readonly OfferedTool[]> {
  const tools = new Map<string, OfferedTool>()
  for (const { botId, tool } of await listOffers(services, principal)) {
    if (tool !== undefined && !tools.has(tool.name)) tools.set(tool.name, { ...tool, botId })
  }
  return [...tools.values()]
}

export async function listCdsServices(
  services: Services,
  principal: Principal,
): Promise<readonly OfferedService[]> {
  const offers = await listOffers(services, principal)
  return offers.flatMap(({ botId, service }) =>
    service === undefined ? [] : [{ ...service, botId }],
  )
}

/** Returns undefined for an offer that a policy has cut, or that was stored before its rules. */
function readOffer<T>(bot: Resource, parse: (bot: Resource) => T | undefined): T | undefined {
  try {
    return parse(bot)
  } catch (error) {
    if (error instanceof HttpError) return undefined
    throw error
  }
}

function listOffers(services: Services, principal: Principal): Promise<readonly Offer[]> {
  return getOrStart(cache, callerKey(principal), () => findOffers(services, principal))
}

/** Oldest first. Errors: 400 for too many Bots. */
async function findOffers(services: Services, principal: Principal): Promise<readonly Offer[]> {
  if (!may(principal, 'Bot', 'search') || !may(principal, 'Bot', 'read')) return []
  const found = await findBots(services, principal)
  const bots = found.map((one) => ({ ...one, id: one.bot.id, meta: one.bot.meta ?? {} }))
  const offers: Offer[] = []
  for (const one of oldestFirst(bots)) {
    // The patterns of a schema are compiled to check them.
    await yieldTurn()
    const tool = readOffer(one.bot, parseBotTool)
    const service = readOffer(one.bot, parseCdsService)
    if (tool === undefined && service === undefined) continue
    const problem = await findProblem(services, one)
    if (problem === undefined) offers.push({ botId: one.id, tool, service })
  }
  return offers
}

/** Includes those of linked Projects. */
async function findBots(
  { repository }: Services,
  principal: Principal,
): Promise<readonly FoundBot[]> {
  const bots: FoundBot[] = []
  let cursor: string | undefined
  do {
    const request = searchFor('Bot', [], PAGE, [{ code: '_id', descending: false }])
    const page = await repository.search(principal, { ...request, cursor })
    bots.push(...page.versions.map(toFoundBot))
    if (bots.length > MOST_BOTS) {
      throw badRequest(
        `A caller may see at most ${MOST_BOTS} Bots to list their tools and services: narrow its policy`,
      )
    }
    cursor = page.next
  } while (cursor !== undefined)
  return bots
}
