// A message that is to be published again: kept between the view in which it was seen and the form.

let filled = null;

export const draft = {
  /** Keep the values of the form, for a topic by its full name. */
  fill(topic, values) {
    filled = { topic, values };
  },

  /** The values that were kept for a topic, once; null: none. */
  take(topic) {
    const values = filled?.topic === topic ? filled.values : null;
    filled = null;
    return values;
  },
};
