/** Successes of Subscriptions that no AuditEvent reports yet, counted in `subscription_state`. */

import { SUBSCRIPTION } from '../access/subscription.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { Connection } from '../platform/postgres/statement.ts'
import { type VersionRow, versionColumns } from '../store/rows/rows.ts'

/** Its Project and its row id. */
export interface UnreportedPlace {
  readonly project: number
  readonly subscription: string
}

export interface Unreported {
  readonly count: number
  readonly since: Date
  /** The last content of the Subscription, deleted or not; undefined when it is expunged. */
  readonly version: VersionRow | undefined
}

const AT_ONCE = 100
/** They wait so long for more. */
const SUMMED_UP = '1 minute'

/** Lists Subscriptions whose first unreported success has waited a minute. */
export async function unreportedSubscriptions(
  connection: Connection,
): Promise<readonly UnreportedPlace[]> {
  return connection.query<UnreportedPlace>({
    name: 'subscriptions-unreported',
    text: `select project, subscription::text from subscription_state
      where untold_since < clock_timestamp() - interval '${SUMMED_UP}' limit ${AT_ONCE}`,
    values: [],
  })
}

/** Takes them in the transaction of `connection`, which reports them; undefined when another worker did. Two statements. */
export async function takeUnreported(
  connection: Connection,
  { project, subscription }: UnreportedPlace,
): Promise<Unreported | undefined> {
  const [taken] = await connection.query<Omit<Unreported, 'version'>>({
    name: 'subscription-report',
    text: `update subscription_state s set untold = 0, untold_since = null
      from (select * from subscription_state
        where project = $1 and subscription = $2 and untold > 0 for update) o
      where s.project = o.project and s.subscription = o.subscription
      returning o.untold as count, o.untold_since as since`,
    values: [project, subscription],
  })
  if (taken === undefined) return undefined
  const [version] = await connection.query<VersionRow>({
    name: 'subscription-last',
    text: `select ${versionColumns('v')} from version v
      where v.project = $1 and v.type = ${typeNumber(SUBSCRIPTION)} and v.id = $2
        and v.content is not null
      order by v.ver desc limit 1`,
    values: [project, subscription],
  })
  return { ...taken, version }
}
