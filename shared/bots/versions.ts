/** The versions of a Bot's code, from its history: live code and that of labels. */
import { type Principal, type ProjectContext, systemPrincipal } from '../access/principal.ts'
import { badRequest, isAbsent } from '../core/errors.ts'
import { botLabels, type LabelledCode, LIVE, versionName } from '../fhir/bot-labels.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import type { Services } from '../request/services.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { platformMeta } from '../store/rows/version.ts'
import { codeLocation } from './bot.ts'
import { BOT } from './schedules.ts'

interface CodeVersion extends LabelledCode {
  /** The name of the deployment, otherwise the version of the Bot that first had the code. */
  readonly name: string
  readonly deployed: Date
  /** `Type/id` of its author. */
  readonly author: string | undefined
  /** The latest version of the Bot with this code, and the label that has it there. */
  readonly place: { readonly version: number; readonly label: string }
}

/** Versions of a Bot that are looked through. */
const MOST_VERSIONS = 2000
/** A version may have a megabyte. */
const PAGE = 100

/** One state of the Bot, with the code of each label. */
interface BotState {
  readonly codes: ReadonlyMap<string, LabelledCode>
  readonly version: number
  readonly updated: Date
  readonly author: string | undefined
}

export interface BotHistory {
  /** URL of the live code; undefined if there is none. */
  readonly live: string | undefined
  /** The latest first. */
  readonly versions: readonly CodeVersion[]
  /** The code that was live before the current one first was; an older one after a rollback, too. */
  readonly previous: CodeVersion | undefined
}

export async function readHistory(
  services: Pick<Services, 'repository'>,
  principal: Principal,
  botId: string,
): Promise<BotHistory> {
  const states = await readStates(services, principal, botId)
  const found = new Map<string, CodeVersion>()
  // The earliest state with a code comes last and gives its version.
  for (const { codes, version, updated, author } of states) {
    for (const [label, { code, source }] of codes) {
      const name = versionName(code) ?? String(version)
      const place = found.get(codeUrl(code))?.place ?? { version, label }
      found.set(codeUrl(code), { code, source, name, deployed: updated, author, place })
    }
  }
  const live = states.flatMap(({ codes }) => codes.get(LIVE) ?? []).map(({ code }) => codeUrl(code))
  const before = live[live.lastIndexOf(live[0] ?? '') + 1]
  const versions = [...found.values()].sort((a, b) => b.deployed.getTime() - a.deployed.getTime())
  return { live: live[0], versions, previous: before === undefined ? undefined : found.get(before) }
}

/** Errors: 400 when the name is taken. */
export async function requireNewVersion(
  services: Pick<Services, 'repository'>,
  principal: Principal,
  botId: string,
  name: string,
): Promise<void> {
  const { versions } = await readHistory(services, principal, botId)
  if (versions.some((one) => one.name === name)) {
    throw badRequest(`The bot has a version "${name}" already`, 'version')
  }
}

/**
 * Returns the code of an earlier version, whose Binary the current Bot does not guard. Errors: 400 when the Binary is
 * gone, or has changed since the deployment.
 */
export async function intactCode(
  { repository, config }: Services,
  project: ProjectContext,
  { code, source, name, deployed }: CodeVersion,
): Promise<LabelledCode> {
  const location = codeLocation({ resourceType: BOT, executableCode: code }, config.baseUrl)
  if (!location || location === 'inline') throw gone(name)
  const binary = await repository
    .read(systemPrincipal(project), 'Binary', location.binary)
    .catch((error: unknown) => {
      if (isAbsent(error)) throw gone(name)
      throw error
    })
  if (platformMeta(binary).project !== project.id) throw gone(name)
  if (binary.lastUpdated <= deployed) return { code, source }
  throw badRequest(`The code of version ${name} has changed since its deployment: deploy it again`)
}

function gone(name: string) {
  return badRequest(`The code of version ${name} is gone`)
}

/** The latest first. */
async function readStates(
  { repository }: Pick<Services, 'repository'>,
  principal: Principal,
  botId: string,
): Promise<readonly BotState[]> {
  const states: BotState[] = []
  for (let offset = 0; offset < MOST_VERSIONS; offset += PAGE) {
    const request = { count: PAGE, offset }
    const page = await repository.history(principal, BOT, botId, request)
    for (const version of page.versions) {
      if (version.content === undefined) continue
      const codes = readCodes(parseVersion(version))
      const author = platformMeta(version).author?.reference
      states.push({ codes, version: version.ver, updated: version.lastUpdated, author })
    }
    if (page.versions.length < PAGE) break
  }
  return states
}

/** Leaves out the deprecated `code`, which has no Binary. */
function readCodes(bot: Resource): ReadonlyMap<string, LabelledCode> {
  const codes = new Map<string, LabelledCode>()
  const { executableCode, sourceCode } = bot
  if (isObject(executableCode) && typeof executableCode.url === 'string') {
    const source = isObject(sourceCode) ? sourceCode : undefined
    codes.set(LIVE, { code: executableCode, source })
  }
  for (const { name, code, source } of botLabels(bot)) codes.set(name, { code, source })
  return codes
}

export function codeUrl(code: unknown): string {
  return isObject(code) ? String(code.url) : ''
}
