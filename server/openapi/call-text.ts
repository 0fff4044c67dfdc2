/**
 * The words of the description of the API: a line for each call, by method and path. A field is written as
 * `type: meaning`, with `!` behind the type where it is required.
 */

/** Name → `text!: What it is`; the types are text, flag, whole, list, object, or the name of a schema. */
export type FieldTexts = Readonly<Record<string, string>>

export interface CallText {
  readonly summary: string
  readonly description?: string
  readonly query?: FieldTexts
  /** Fields of a JSON object or of a form, or the name of a schema, or of a media type for a body as it comes. */
  readonly body?: FieldTexts | string
  readonly example?: unknown
  /** The same for the answer. */
  readonly answer?: FieldTexts | string
  readonly answers?: unknown
  /** 200 where it is left out. */
  readonly status?: number
}
