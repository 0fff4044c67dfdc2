/** A Bot with all that a run of it needs. */
import type { BotLimits } from '../../shared/bots/bot.ts'
import type { CodeFormat } from '../../shared/bots/code.ts'
import type { Resource } from '../../shared/fhir/resource.ts'

export interface LoadedBot {
  readonly bot: Resource
  readonly code: string
  /** Name of its file as its author knows it. */
  readonly file: string
  /** Hash of the file, name included. */
  readonly codeHash: string
  readonly format: CodeFormat
  /** Names of the libraries that its code uses, those that others need before them. */
  readonly libraries: readonly string[]
  /** The client's `getAccessToken` does not wait, so that a token has to be there before it is called. */
  readonly wantsToken: boolean
  readonly limits: BotLimits
  /** Over all workers. */
  readonly maxConcurrency: number
  /** The attempts at an asynchronous run that fails. */
  readonly maxAttempts: number
  readonly fresh: boolean
  readonly concurrent: boolean
}
