/** Lists of named values: settings of Projects and agents, options of UserConfigurations. */
import { badRequest } from '../core/errors.ts'
import { asArray, isObject, type Resource } from '../fhir/resource.ts'

export type SettingTypes = Readonly<Record<string, `value${string}`>>

interface KnownSettings {
  /** Path of the list. */
  readonly path: string
  /** The member that holds the name. */
  readonly key: 'id' | 'name'
  readonly types: SettingTypes
}

/** Errors: 400 for a known setting that has another type of value, or is there twice: it would not apply. */
export function requireKnownTypes(items: unknown, { path, key, types }: KnownSettings): void {
  const seen = new Set<string>()
  for (const [i, item] of asArray(items).entries()) {
    const name = isObject(item) ? item[key] : undefined
    if (!isObject(item) || typeof name !== 'string' || !Object.hasOwn(types, name)) continue
    const type = String(types[name])
    const place = `${path}[${i}]`
    if (item[type] === undefined) throw badRequest(`${name} must have a ${type}`, place)
    if (seen.has(name)) throw badRequest(`${name} may be given once`, place)
    seen.add(name)
  }
}

/** Settings that Medplum's agent 5.1 reads; it ignores one of another type. */
const AGENT_SETTINGS: SettingTypes = {
  channelAutoRetry: 'valueBoolean',
  channelAutoRetryBackoffMultiplier: 'valueDecimal',
  channelAutoRetryBaseDelayMs: 'valueInteger',
  channelAutoRetryMaxAttempts: 'valueInteger',
  channelAutoRetryMaxDelayMs: 'valueInteger',
  channelGuaranteedDelivery: 'valueBoolean',
  durableQueue: 'valueBoolean',
  keepAlive: 'valueBoolean',
  logStatsFreqSecs: 'valueInteger',
  maxClientsPerRemote: 'valueInteger',
  queueDbPath: 'valueString',
  queueErroredRetentionDays: 'valueInteger',
  queueRetentionDays: 'valueInteger',
  queueRetentionMaxMb: 'valueInteger',
  queueSweepIntervalSecs: 'valueInteger',
}

/** Errors: 400 as above; other settings are left to the programs that read them. */
export function checkAgentSettings({ setting }: Resource): void {
  requireKnownTypes(setting, { path: 'Agent.setting', key: 'name', types: AGENT_SETTINGS })
}

/** Errors: 400 as above, for the limits that the service reads. */
export function checkUserOptions({ option }: Resource): void {
  const types = { fhirQuota: 'valueInteger' } as const
  requireKnownTypes(option, { path: 'UserConfiguration.option', key: 'id', types })
}
